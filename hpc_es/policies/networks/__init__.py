"""What networks are made of: layouts, recurrent cells, action heads."""
