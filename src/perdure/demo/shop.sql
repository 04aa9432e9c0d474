-- A shop's database, which knows nothing of runs: it counts what really reached it.

-- name: create_orders
-- What was sold, and what was paid for it.
CREATE TABLE orders (order_id TEXT PRIMARY KEY, item TEXT NOT NULL, paid_cents INTEGER NOT NULL);

-- name: create_refunds
-- Money that went back, and under which operation key; a refund made twice is two rows.
CREATE TABLE refunds (
    operation_key TEXT, order_id TEXT NOT NULL, cents INTEGER NOT NULL, pid INTEGER NOT NULL
);

-- name: create_visits
-- Each time that anybody asked the model, called a tool, asked the clock or asked for a refund.
CREATE TABLE visits (kind TEXT NOT NULL, name TEXT NOT NULL, pid INTEGER NOT NULL);

-- name: insert_order
-- Sell something.
INSERT INTO orders VALUES (:order_id, :item, :paid_cents);

-- name: find_order
-- One order.
SELECT item, paid_cents FROM orders WHERE order_id = :order_id;

-- name: insert_refund
-- Pay money back; with `once`, unless that was done under the same operation key.
INSERT INTO refunds SELECT :operation_key, :order_id, :cents, :pid
WHERE NOT :once OR NOT EXISTS (SELECT 1 FROM refunds WHERE operation_key = :operation_key);

-- name: find_refund
-- What was paid back under an operation key.
SELECT order_id, cents FROM refunds WHERE operation_key = :operation_key;

-- name: list_refunds
-- All that was paid back, as a person finds it in the book.
SELECT order_id, cents FROM refunds ORDER BY rowid;

-- name: count_refunds
-- How often one process paid money back, and how much in all.
SELECT count(*), COALESCE(sum(cents), 0) FROM refunds WHERE pid = :pid;

-- name: insert_visit
-- Note that somebody came.
INSERT INTO visits VALUES (:kind, :name, :pid);

-- name: count_visits
-- What one process came for, and how often.
SELECT kind, name, count(*) FROM visits WHERE pid = :pid GROUP BY kind, name;
