"""Where Innoscope's own Python processes spend their CPU time, by py-spy; servers are never its business."""
