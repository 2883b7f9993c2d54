package dev.chagres.trainer.plan;

import dev.chagres.estimate.KernelTimes;
import dev.chagres.estimate.KernelTrace;
import dev.chagres.io.AtomicFile;
import dev.chagres.trainer.command.Pictures;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.Supplier;
import org.knowm.xchart.CategoryChartBuilder;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.internal.chartpart.Chart;

/**
 * What a profile tells of kernels: lines, tables, pictures and a trace, in a folder.
 *
 * <p>Threading: one thread at a time.
 */
final class ProfileReport {
    private static final int SLOWEST = 10;
    private static final int WIDTH = 1000;
    private static final int HEIGHT = 600;
    private static final int LONGEST_NAME = 60;
    private static final double MIB = 1 << 20;
    private static final double NANOS_PER_MILLI = 1e6;

    private final KernelTimes times;
    private final int steps;
    private final Path folder;
    private final PrintStream err;
    private final List<KernelTimes.Row> slowest;
    private final String text;

    /**
     * Prepares a report.
     *
     * @param steps that were recorded
     * @param err is told where no picture can be drawn
     */
    ProfileReport(KernelTimes times, int steps, Path folder, PrintStream err) {
        this.times = times;
        this.steps = steps;
        this.folder = folder;
        this.err = err;
        slowest = times.slowest(SLOWEST);
        text = told();
    }

    /** Returns the lines: the slowest kernels, collectives that nothing hides, and who told it. */
    String text() {
        return text;
    }

    private String told() {
        StringBuilder text = new StringBuilder();
        if (times.source() == KernelTrace.Source.CUPTI) {
            text.append(table("slowest kernels", slowest));
            text.append(
                    String.format(Locale.ROOT, "devices compute or copy in %.1f %% of the time%n", 100 * times.busy()));
            text.append(
                    times.hasCollectives()
                            ? String.format(
                                    Locale.ROOT,
                                    "exposed communication: in %.1f %% of the time collectives run alone%n",
                                    100 * times.exposedCommunication())
                            : String.format(Locale.ROOT, "exposed communication: no collective ran%n"));
        } else {
            text.append(table("slowest layers, of the host's time", slowest));
        }
        text.append(times.explain()).append(System.lineSeparator());
        if (times.dropped() > 0) {
            text.append(String.format(
                    Locale.ROOT, "%,d records were lost: times are too small; profile fewer steps%n", times.dropped()));
        }
        return text.toString();
    }

    private String table(String title, List<KernelTimes.Row> rows) {
        StringBuilder text = new StringBuilder(String.format(
                Locale.ROOT, "%-" + LONGEST_NAME + "s %8s %10s %8s%n", title, "calls", "ms a step", "share"));
        for (KernelTimes.Row row : rows) {
            text.append(String.format(
                    Locale.ROOT,
                    "%-" + LONGEST_NAME + "s %8d %10.3f %6.1f %%%n",
                    shortened(row.name()),
                    row.calls(),
                    row.millis() / steps,
                    100 * row.share()));
        }
        return text.toString();
    }

    private static String shortened(String name) {
        return name.length() <= LONGEST_NAME ? name : name.substring(0, LONGEST_NAME - 1) + "…";
    }

    /** Writes {@code kernels.txt} and {@code kernels.png}, and {@code memory.png} where memory was looked at; returns their paths. */
    List<Path> write() throws IOException {
        List<Path> written = new ArrayList<>();
        Files.createDirectories(folder);
        Path kernels = folder.resolve("kernels.txt");
        Files.writeString(
                kernels,
                text
                        + System.lineSeparator()
                        + table("all", times.slowest(Integer.MAX_VALUE))
                        + System.lineSeparator()
                        + table("layers, without those inside", times.layers()));
        written.add(kernels);
        if (!slowest.isEmpty()) {
            draw(folder.resolve("kernels.png"), written, () -> bars(slowest));
        }
        if (!times.memory().isEmpty()) {
            draw(folder.resolve("memory.png"), written, this::memory);
        }
        return written;
    }

    /** Writes {@code trace.json}, and returns its path. */
    Path writeTrace() throws IOException {
        Path trace = folder.resolve("trace.json");
        try (AtomicFile file = AtomicFile.create(trace)) {
            var json = new ByteArrayOutputStream();
            times.write(json);
            file.append(json.toByteArray());
            file.publish();
        }
        return trace;
    }

    private Chart<?, ?> bars(List<KernelTimes.Row> rows) {
        var chart = new CategoryChartBuilder()
                .width(WIDTH)
                .height(HEIGHT)
                .title("Milliseconds of a step")
                .yAxisTitle("ms")
                .build();
        chart.getStyler().setXAxisLabelRotation(30).setLegendVisible(false);
        List<String> names = new ArrayList<>();
        for (KernelTimes.Row row : rows) {
            names.add((names.size() + 1) + " "
                    + (row.name().length() > 24 ? row.name().substring(0, 24) + "…" : row.name()));
        }
        chart.addSeries(
                "ms", names, rows.stream().map(row -> row.millis() / steps).toList());
        return chart;
    }

    private Chart<?, ?> memory() {
        XYChart chart = new XYChartBuilder()
                .width(WIDTH)
                .height(HEIGHT)
                .title("Memory that passes hold")
                .xAxisTitle("ms")
                .yAxisTitle("MiB")
                .build();
        chart.getStyler().setMarkerSize(0);
        long first = times.memory().stream()
                .mapToLong(KernelTimes.Memory::nanos)
                .min()
                .orElse(0);
        for (int device : times.memory().stream()
                .mapToInt(KernelTimes.Memory::device)
                .distinct()
                .sorted()
                .toArray()) {
            List<KernelTimes.Memory> own = times.memory().stream()
                    .filter(each -> each.device() == device)
                    .toList();
            chart.addSeries(
                    "device " + device,
                    own.stream()
                            .mapToDouble(each -> (each.nanos() - first) / NANOS_PER_MILLI)
                            .toArray(),
                    own.stream().mapToDouble(each -> each.bytes() / MIB).toArray());
        }
        return chart;
    }

    /** Where Java cannot draw there is no picture, which a line says. */
    private void draw(Path picture, List<Path> written, Supplier<Chart<?, ?>> chart) throws IOException {
        byte[] bytes;
        try {
            bytes = Pictures.png(chart);
        } catch (IOException e) {
            err.println("profile: " + e.getMessage());
            return;
        }
        Files.write(picture, bytes);
        written.add(picture);
    }
}
