"""A server that cannot start without a key, as many real ones; the demo configures it without the key."""

import os
import sys

if "WEATHER_KEY" not in os.environ:
    sys.exit("weather: WEATHER_KEY is not set")
