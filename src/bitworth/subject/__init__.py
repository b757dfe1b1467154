"""What is studied, and on what data: ONNX files, their sites, and streams of inputs."""
