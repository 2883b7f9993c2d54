package dev.chagres.samples.train;

import java.io.PrintStream;
import java.io.PrintWriter;
import java.util.concurrent.Callable;
import picocli.CommandLine;

/**
 * Runs a command with its options: what they print goes where the command does, and wrong ones are told in one line.
 *
 * <p>Threading: one thread at a time.
 */
final class CommandStart {
    private static final int USAGE = 2;

    private CommandStart() {}

    /** Runs {@code command} and returns its exit status: 2 when the options are wrong. */
    static int of(Callable<Integer> command, PrintStream out, PrintStream err, String... arguments) {
        var line = new CommandLine(command);
        if (command instanceof Launch) {
            line.setStopAtPositional(true); // What stands behind the program is the program's.
        }
        String name = line.getCommandName();
        return line.setOut(new PrintWriter(out, true, out.charset()))
                .setErr(new PrintWriter(err, true, err.charset()))
                .setParameterExceptionHandler((wrong, given) -> {
                    err.println(name + ": " + wrong.getMessage() + " (" + name + " --help lists the options)");
                    return USAGE;
                })
                .execute(arguments);
    }
}
