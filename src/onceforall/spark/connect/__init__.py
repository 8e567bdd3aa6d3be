"""What a run asks of Spark with Spark Connect, where no JVM is at hand."""
