from .card import Card as Card
