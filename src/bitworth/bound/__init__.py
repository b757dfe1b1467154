"""Why a format pays or not, and what comes for free."""
