package dev.chagres.trainer.command;

import java.io.IOException;
import java.io.PrintStream;
import java.util.concurrent.Callable;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * A command about proteins. Exit statuses: 0 done; 1 the data, a file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
abstract class ProteinCommand implements Callable<Integer> {
    private static final int DONE = 0;

    private final PrintStream out;
    private final PrintStream err;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    ProteinCommand(PrintStream out, PrintStream err) {
        this.out = out;
        this.err = err;
    }

    PrintStream out() {
        return out;
    }

    PrintStream err() {
        return err;
    }

    /**
     * Does what the command is for.
     *
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    abstract void run() throws IOException;

    @Override
    public Integer call() throws IOException {
        try {
            run();
            return DONE;
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        }
    }
}
