"""Experiments that look for better methods. The product and the report use nothing from here."""
