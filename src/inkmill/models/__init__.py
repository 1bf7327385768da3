"""What reads the image: rectifiers, backbones, sequence stages, heads, and the recogniser made of them. Needs torch."""

from inkmill.models.recognizer import Recognizer, build_recognizer

__all__ = ["Recognizer", "build_recognizer"]
