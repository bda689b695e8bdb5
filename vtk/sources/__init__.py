"""Pictures that do not lie as files of their own: members of archives, rows of tables, frames of videos."""
