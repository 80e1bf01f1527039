-- SPDX-License-Identifier: MIT OR Apache-2.0
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, value BLOB);
INSERT INTO items
    SELECT value, 'item ' || (value * 7919 % 100003), zeroblob(200) FROM generate_series(1, 100000);
CREATE INDEX by_name ON items (name);
SELECT count(*), sum(length(items.value))
    FROM generate_series(1, 60000) AS wanted
    CROSS JOIN items ON items.name = 'item ' || (wanted.value * 104729 % 100003);
