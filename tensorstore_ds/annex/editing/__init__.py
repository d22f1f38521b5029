"""Make stores from rows of other stores, and change stores in place, without decoding images."""
