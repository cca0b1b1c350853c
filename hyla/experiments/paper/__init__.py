"""The paper's tables and figures, a file for each or for a few that belong together."""
