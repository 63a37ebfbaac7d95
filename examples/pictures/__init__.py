"""The pictures of docs/idea.md and docs/passes.md, drawn from what the compiler makes."""
