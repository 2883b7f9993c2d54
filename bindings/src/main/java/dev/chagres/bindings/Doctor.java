package dev.chagres.bindings;

import dev.chagres.bindings.Provider.Choice;
import java.util.List;
import java.util.function.Supplier;

/**
 * Says what this process finds on the machine: provider, driver, and for each library where it is, its version, what is
 * wrong with it and the line that mends it.
 *
 * <p>Threading: thread-safe.
 */
public final class Doctor {

    /** How a library fares. */
    public enum State {
        /** Found, opens, has a version that works. */
        OK,
        /** Usable, with something to know. */
        WARNING,
        /** Not usable. */
        FAILED
    }

    /**
     * One library.
     *
     * @param isNeeded whether the chosen provider cannot work without it
     * @param version what the library says, {@code "-"} where it has none to tell
     * @param wanted the versions that work, {@code "-"} when any does
     * @param place its main file, {@code "-"} when not found
     * @param problem what is wrong, empty when nothing is
     * @param remedy the line that mends it, empty when nothing is wrong
     * @param packages what pip installs to mend it, empty when nothing is wrong or pip cannot
     */
    public record Row(
            String library,
            State state,
            boolean isNeeded,
            String version,
            String wanted,
            String place,
            String problem,
            String remedy,
            List<String> packages) {

        /** Copies the list. */
        public Row {
            packages = List.copyOf(packages);
        }

        /** Whether the chosen provider is held up by this library. */
        public boolean isFatal() {
            return isNeeded && state == State.FAILED;
        }
    }

    /**
     * The whole finding.
     *
     * @param provider the chosen provider's name and the reason for it, or why none can be chosen
     * @param facts driver, platform, cache and JVM flag, a line each
     * @param rows the libraries
     * @param verdict what opening everything for the provider came to, empty when it went well
     */
    public record Report(String provider, List<String> facts, List<Row> rows, String verdict) {

        /** Copies the lists. */
        public Report {
            facts = List.copyOf(facts);
            rows = List.copyOf(rows);
        }

        /** 0 when the chosen provider works, else 1. */
        public int exitStatus() {
            return verdict.isEmpty() && rows.stream().noneMatch(Row::isFatal) ? 0 : 1;
        }

        /**
         * The one line that installs every failed library that pip can bring, needed by the provider or not; empty when there
         * is none.
         */
        public String installLine() {
            return DoctorText.installLine(rows);
        }

        /** The report for people: facts, a table, then each problem with its remedy. */
        public String text() {
            return DoctorText.of(this);
        }
    }

    private Doctor() {}

    /** Examines the machine and opens the libraries of the chosen provider, as {@link NativeLibraries} does. */
    public static Report report() {
        return report(Surroundings.ofProcess(), Driver::probe, NativeLibraries::ensureLoaded);
    }

    static Report report(Surroundings surroundings, Supplier<Driver> probe, Runnable load) {
        Driver driver;
        Choice choice;
        try {
            OwnLibraries.requireLinux(surroundings);
            NativeAccess.ensure();
            driver = probe.get();
            choice = Provider.choose(surroundings.property(Provider.PROPERTY).orElse("auto"), () -> driver);
        } catch (NativeException | IllegalArgumentException | IllegalStateException refused) {
            return new Report("none", List.of(), List.of(), String.valueOf(refused.getMessage()));
        }
        Examination examination = new Examination(surroundings, choice.provider());
        List<Row> rows = examination.rows(driver);
        String verdict = "";
        try {
            load.run();
        } catch (NativeException | IllegalArgumentException | IllegalStateException refused) {
            verdict = String.valueOf(refused.getMessage());
        }
        String provider = choice.provider().label() + " (" + choice.reason() + ")";
        return new Report(provider, examination.facts(driver), rows, verdict);
    }

    /** Prints the report; the exit status is 0 when the chosen provider works, else 1. */
    public static void main(String[] arguments) {
        Report report = report();
        System.out.print(report.text());
        System.out.flush();
        System.exit(report.exitStatus());
    }
}
