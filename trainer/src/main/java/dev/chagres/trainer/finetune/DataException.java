package dev.chagres.trainer.finetune;

import org.jspecify.annotations.Nullable;

/** Data or files that cannot be trained on; the message names the option, the file and the line. */
final class DataException extends RuntimeException {
    private static final long serialVersionUID = 1;

    DataException(String text) {
        this(text, null);
    }

    DataException(String text, @Nullable Throwable cause) {
        super(text, cause);
    }
}
