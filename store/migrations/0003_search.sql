-- Which rollouts have three characters in their title or the name of their task, whatever the case: a search reads the rows
-- that have all of its own, and compares those. The texts stand in `rollouts` alone, and no places in them are kept.
CREATE VIRTUAL TABLE rollout_texts USING fts5 (
    title, task_id, content = 'rollouts', content_rowid = 'number', tokenize = 'trigram', detail = none, columnsize = 0
);
INSERT INTO rollout_texts (rollout_texts) VALUES ('rebuild');

CREATE TRIGGER rollouts_add_texts AFTER INSERT ON rollouts
BEGIN
    INSERT INTO rollout_texts (rowid, title, task_id) VALUES (NEW.number, NEW.title, NEW.task_id);
END;

CREATE TRIGGER rollouts_take_texts AFTER DELETE ON rollouts
BEGIN
    INSERT INTO rollout_texts (rollout_texts, rowid, title, task_id) VALUES ('delete', OLD.number, OLD.title, OLD.task_id);
END;

CREATE TRIGGER rollouts_change_texts AFTER UPDATE OF title, task_id ON rollouts
BEGIN
    INSERT INTO rollout_texts (rollout_texts, rowid, title, task_id) VALUES ('delete', OLD.number, OLD.title, OLD.task_id);
    INSERT INTO rollout_texts (rowid, title, task_id) VALUES (NEW.number, NEW.title, NEW.task_id);
END;
