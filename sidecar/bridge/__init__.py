"""What joins the coordinator and the rails: a coordinator as an endpoint that is asked and never told what to do."""
