# SPDX-License-Identifier: MIT OR Apache-2.0
# For fingers used to make: all of it is in ./dev, which needs no make.
.PHONY: compare bench build test lint

compare bench build test lint:
	./dev $@
