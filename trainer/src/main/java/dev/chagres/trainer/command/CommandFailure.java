package dev.chagres.trainer.command;

/** Ends a command with exit status 1 and a text of one line. */
final class CommandFailure extends RuntimeException {
    private static final long serialVersionUID = 1;

    CommandFailure(String text, Throwable cause) {
        super(text, cause);
    }

    CommandFailure(String text) {
        super(text);
    }
}
