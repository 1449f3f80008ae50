"""The incident lab: stalls on real servers, each with its expected finding and a healthy twin."""
