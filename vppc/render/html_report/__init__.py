"""Reports as single pages of HTML with charts. Only ``charts`` needs Bokeh."""
