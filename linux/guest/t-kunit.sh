# SPDX-License-Identifier: GPL-2.0
# Boot with kunit.enable=1. Repeats the results of the suites of the series.
dmesg | sed -n 's/^\[[^]]*\] *//; s/^ *\(\(not \)\{0,1\}ok [0-9]* \)\(- \)\{0,1\}\(.*\)/\1\4/p' > /tmp/kunit
sed 's/^\(not \)\{0,1\}ok [0-9]* /\1ok - kunit /' /tmp/kunit
grep -q '^not ok' /tmp/kunit && dmesg | grep -A8 'EXPECTATION FAILED\|ASSERTION FAILED' | head -60
for s in $(echo "${NW_suites:-ptemagnet-part,hugegpt-pool}" | tr , ' '); do
	check "kunit suite $s has run" grep -q "^ok [0-9]* $s\$" /tmp/kunit
done
