"""The incident lab: stalls made on real servers, each with the finding that must come first, and its healthy twin."""
