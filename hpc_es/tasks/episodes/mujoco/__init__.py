"""MuJoCo environments of Gymnasium, stepped without Gymnasium, to the same bits."""
