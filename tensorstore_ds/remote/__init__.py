"""Read and write files at a URL: HTTP, S3 and the Hugging Face Hub."""
