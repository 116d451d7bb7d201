"""Pictures, for those who would rather look (`elmo[plot]`)."""
