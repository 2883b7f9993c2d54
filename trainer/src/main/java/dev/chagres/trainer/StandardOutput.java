package dev.chagres.trainer;

import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.Charset;
import org.jspecify.annotations.Nullable;

/**
 * Where the command prints what it has to say, and whether anybody got it: a {@link PrintStream} alone knows no reason.
 *
 * <p>Threading: one thread at a time.
 */
final class StandardOutput {
    private final PrintStream text;
    private @Nullable IOException failure;
    private boolean told;

    /**
     * Prints to {@code bytes}, line by line.
     *
     * @param charset what text becomes bytes by
     */
    StandardOutput(OutputStream bytes, Charset charset) {
        text = new PrintStream(new Watched(bytes), true, charset);
    }

    /** Returns where to print. */
    PrintStream text() {
        return text;
    }

    /** Returns whether something that was printed so far was lost. */
    boolean failed() {
        text.flush();
        return failure != null;
    }

    /** Returns in one line why something was lost; null when nothing was, and each time after the first. */
    @Nullable
    String newFailure() {
        if (!failed() || told) {
            return null;
        }
        told = true;
        String reason = failure == null || failure.getMessage() == null ? "it is closed" : failure.getMessage();
        return "standard output cannot be written: " + reason;
    }

    private final class Watched extends OutputStream {
        private final OutputStream bytes;

        Watched(OutputStream bytes) {
            this.bytes = bytes;
        }

        @Override
        public void write(int b) throws IOException {
            write(new byte[] {(byte) b}, 0, 1);
        }

        @Override
        public void write(byte[] buffer, int offset, int length) throws IOException {
            try {
                bytes.write(buffer, offset, length);
            } catch (IOException e) {
                throw kept(e);
            }
        }

        @Override
        public void flush() throws IOException {
            try {
                bytes.flush();
            } catch (IOException e) {
                throw kept(e);
            }
        }

        private IOException kept(IOException e) {
            if (failure == null) {
                failure = e;
            }
            return e;
        }
    }
}
