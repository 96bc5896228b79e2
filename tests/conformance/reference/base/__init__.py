"""What every arrow may ask for: the settings in force. No job and no worker is known here."""
