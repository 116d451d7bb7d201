"""What vectors are good for, measured: readers of task data, metrics, and the tasks themselves."""
