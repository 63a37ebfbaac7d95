"""The runtime: runs compiled programs on real ranks. Thin on purpose: it makes no scheduling decisions."""
