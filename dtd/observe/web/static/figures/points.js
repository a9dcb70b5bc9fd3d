// The points of a series as a chart draws them: gaps, smoothing, the best one, fewer of them.  Pure.
//
// A point is [first, last, values, least, mean, greatest]: of the steps from the first to the last one,
// or of the seconds if it is a worker's or a link's.

// Without what rounding leaves in means, or a figure that never changes would be drawn as noise.
const exact = (value) => (typeof value === "number" ? Number(value.toPrecision(9)) : value);

export function known(series) {
  return (series?.points ?? []).filter((point) => point[4] !== null).map((point) => [...point.slice(0, 3), ...point.slice(3).map(exact)]);
}

export function newest(series) {
  return known(series).at(-1)?.[4] ?? null;
}

// A line has a gap where nothing was reported for several times as long as usual.  A point stands for
// one report or for many, so what is usual is the distance of reports, not that of points.
const USUAL_TIMES = 4;
export function withGaps(points) {
  const apart = points.slice(1).map((point, place) => (point[1] - points[place][1]) / point[2]).sort((a, b) => a - b);
  const most = USUAL_TIMES * Math.max(1, apart[Math.floor(apart.length / 2)] ?? 1);
  return points.flatMap((point, place) => (place && point[0] - points[place - 1][1] > most
    ? [[points[place - 1][1] + 1, points[place - 1][1] + 1, 0, null, null, null], point] : [point]));
}

// The exponential moving average of values, without the bias of its beginning; gaps stay.
export function smoothed(values, weight) {
  let [average, sum] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    average = weight * average + (1 - weight) * value;
    sum = weight * sum + 1 - weight;
    return average / sum;
  });
}

// The best point: [its last step, its value].
export function best(points, is_low_better) {
  const [column, sign] = is_low_better ? [3, 1] : [5, -1];
  const found = points.filter((point) => point[column] !== null).reduce((a, b) => (a && sign * a[column] <= sign * b[column] ? a : b), null);
  return found && [found[1], found[column]];
}

// Values that are spread over magnitudes, as those of a loss that falls fast, need a logarithmic axis.
const SPREAD = 20;
export function isSpread(points) {
  const values = points.map((point) => point[4]);
  const least = Math.min(...values);
  return values.length > 2 && least > 0 && Math.max(...values) > SPREAD * least;
}

// Two neighbours become one point while there are more points than this.
export function thinned(points, most) {
  if (points.length <= most) return points;
  return thinned(points.flatMap((point, place) => (place % 2 ? [] : [merged(point, points[place + 1])])), most);
}

function merged(a, b) {
  if (!b) return a;
  if (a[4] === null || b[4] === null) return [a[0], b[1], ...(a[4] === null ? b : a).slice(2)];
  const values = a[2] + b[2];
  return [a[0], b[1], values, Math.min(a[3], b[3]), (a[2] * a[4] + b[2] * b[4]) / values, Math.max(a[5], b[5])];
}
