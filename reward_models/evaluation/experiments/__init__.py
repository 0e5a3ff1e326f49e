"""Who talks and who judges, a file each."""
