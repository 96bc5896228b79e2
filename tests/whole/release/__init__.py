"""What has to hold before a release is uploaded: ``make release-check``. Uploading it is not done here."""
