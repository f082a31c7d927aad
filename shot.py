import sys

sys.path.insert(0, "/root/wt")
from tests import browser

print([n for n in dir(browser) if not n.startswith("_")])
