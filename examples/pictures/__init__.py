"""The pictures of the documents, drawn from what the compiler makes."""
