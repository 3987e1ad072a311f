"""What accompanies sessions without driving them: titles, projections, attachments, commands."""
