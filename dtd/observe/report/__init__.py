"""The report of a job, as HTML or Markdown: made by dtdctl, and by the coordinator for its page."""
