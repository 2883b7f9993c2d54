package dev.chagres.bindings;

import dev.chagres.bindings.Doctor.Report;
import dev.chagres.bindings.Doctor.Row;
import dev.chagres.bindings.Doctor.State;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Lays a doctor's report out as text. */
final class DoctorText {

    private static final List<String> TITLES = List.of("library", "state", "version", "wanted", "place");

    private DoctorText() {}

    static String of(Report report) {
        StringBuilder text = new StringBuilder("provider: " + report.provider() + "\n");
        report.facts().forEach(fact -> text.append(fact).append('\n'));
        if (!report.rows().isEmpty()) {
            text.append('\n');
            table(report.rows(), text);
        }
        List<Row> installed = report.rows().stream()
                .filter(row -> row.isFatal() && !row.packages().isEmpty())
                .toList();
        boolean together = installed.size() > 1;
        report.rows().stream()
                .filter(row -> !row.problem().isEmpty() && !isUnneeded(row))
                .forEach(row -> {
                    problem(row, text);
                    if (!together || !installed.contains(row)) {
                        text.append("  to mend it: ").append(row.remedy()).append('\n');
                    }
                });
        if (together) {
            together(installed, text);
        }
        unneeded(report.rows().stream().filter(DoctorText::isUnneeded).toList(), text);
        text.append('\n').append(conclusion(report)).append('\n');
        return text.toString().lines().map(ForeignText::lines).collect(Collectors.joining("\n", "", "\n"));
    }

    private static void table(List<Row> rows, StringBuilder text) {
        List<List<String>> lines = new ArrayList<>();
        lines.add(TITLES);
        rows.forEach(row -> lines.add(List.of(row.library(), state(row), row.version(), row.wanted(), row.place())));
        int[] widths = IntStream.range(0, TITLES.size())
                .map(column -> lines.stream()
                        .mapToInt(line -> line.get(column).length())
                        .max()
                        .orElse(0))
                .toArray();
        for (List<String> line : lines) {
            StringBuilder padded = new StringBuilder();
            for (int column = 0; column < widths.length; column++) {
                String cell = line.get(column);
                padded.append(cell).append(" ".repeat(widths[column] - cell.length() + 2));
            }
            text.append(padded.toString().stripTrailing()).append('\n');
        }
    }

    private static String state(Row row) {
        return isUnneeded(row) ? "not needed" : row.state().name().toLowerCase(Locale.ROOT);
    }

    private static boolean isUnneeded(Row row) {
        return row.state() == State.FAILED && !row.isNeeded();
    }

    private static void problem(Row row, StringBuilder text) {
        text.append('\n').append(row.library()).append(":\n");
        row.problem()
                .lines()
                .forEach(line -> text.append("  ").append(line.strip()).append('\n'));
    }

    /** Whoever lacks several libraries wants one line for all, not one beside each. */
    private static void together(List<Row> rows, StringBuilder text) {
        text.append("\nTo mend ")
                .append(rows.stream().map(Row::library).collect(Collectors.joining(", ")))
                .append(":\n  ")
                .append(installLine(rows))
                .append('\n');
    }

    /** The line that installs the packages of all rows, each once; empty when there are none. */
    static String installLine(List<Row> rows) {
        String packages =
                rows.stream().flatMap(row -> row.packages().stream()).distinct().collect(Collectors.joining(" "));
        return packages.isEmpty() ? "" : "pip install " + packages;
    }

    /** A laptop lacks all of NVIDIA's libraries and is none the worse for it: few lines will do. */
    private static void unneeded(List<Row> rows, StringBuilder text) {
        if (rows.isEmpty()) {
            return;
        }
        text.append("\nNot needed by this provider; to have them:\n");
        rows.stream()
                .filter(row -> row.packages().isEmpty())
                .forEach(row -> text.append("  ")
                        .append(row.library())
                        .append(": ")
                        .append(row.remedy())
                        .append('\n'));
        String installed = rows.stream()
                .filter(row -> !row.packages().isEmpty())
                .map(Row::library)
                .collect(Collectors.joining(", "));
        if (!installed.isEmpty()) {
            text.append("  ")
                    .append(installed)
                    .append(":\n    ")
                    .append(installLine(rows))
                    .append('\n');
        }
    }

    private static String conclusion(Report report) {
        if (report.exitStatus() == 0) {
            return "The provider works.";
        }
        return report.verdict().isEmpty() || report.rows().stream().anyMatch(Row::isFatal)
                ? "The provider does not work: see above."
                : "The provider does not work:\n" + report.verdict();
    }
}
