"""What a peer's word is worth: who may say what, what is vouched for, what is contradicted."""
