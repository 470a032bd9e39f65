"""What `apressure top` shows. Only the modules `app`, `screens` and `table` import Textual."""
