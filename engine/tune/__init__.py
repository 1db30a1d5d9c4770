"""From labelled questions to a policy: measuring, thresholds, the choice, drift, and studies of deciding per query."""
