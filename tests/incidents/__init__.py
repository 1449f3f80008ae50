"""The incident lab: stalls made on real servers, each with its finding and its healthy twin."""
