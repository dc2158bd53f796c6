"""What the tasks `function` and `command` are made of; tasks of one's own may use it too."""
