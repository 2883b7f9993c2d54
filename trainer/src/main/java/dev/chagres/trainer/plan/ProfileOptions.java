package dev.chagres.trainer.plan;

import dev.chagres.trainer.command.FileChecks;
import java.io.PrintStream;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/**
 * Options of {@code train} about a profile.
 *
 * <p>Threading: one thread at a time.
 */
public final class ProfileOptions {
    private static final String FOLDER = "profile";

    @Option(
            names = "--profile",
            arity = "0..1",
            fallbackValue = "3",
            paramLabel = "N",
            description =
                    "record N steps behind the first three: slowest kernels, exposed communication, memory, a trace for Perfetto"
                            + " (default: none; 3 where no N is given)")
    private @Nullable Integer steps;

    @Option(
            names = "--profile-out",
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER",
            description = "with --profile, where its files go (default: profile)")
    private @Nullable Path folder;

    /** Makes those of a run without a profile. */
    public ProfileOptions() {}

    /**
     * Checks them.
     *
     * @throws IllegalArgumentException when one has no usable value; the text names it
     */
    public void check() {
        if (steps != null && steps < 1) {
            throw new IllegalArgumentException("--profile: expected at least 1, got " + steps);
        }
        if (folder != null && steps == null) {
            throw new IllegalArgumentException("--profile-out: expected --profile beside it, got none");
        }
        FileChecks.requireName("--profile-out", folder);
    }

    /**
     * Returns what is wanted, null for no profile.
     *
     * @param silent whether another process writes files
     */
    public @Nullable Wanted wanted(boolean silent) {
        return steps == null ? null : new Wanted(steps, silent ? null : folder == null ? Path.of(FOLDER) : folder);
    }

    /**
     * A profile of a run.
     *
     * @param steps how many are recorded
     * @param folder where the files go; null where another process writes them
     */
    public record Wanted(int steps, @Nullable Path folder) {
        /** Returns the callback that makes it, and tells {@code out}. */
        public StepProfile callback(PrintStream out) {
            return new StepProfile(steps, folder, out);
        }
    }
}
