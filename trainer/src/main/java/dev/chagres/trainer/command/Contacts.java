package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Shape;
import dev.chagres.bindings.ForeignText;
import dev.chagres.io.AtomicFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.data.FastaReader;
import dev.chagres.models.esm.ContactPredictor;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import java.awt.Color;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.knowm.xchart.HeatMapChart;
import org.knowm.xchart.HeatMapChartBuilder;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/**
 * Writes which residues of proteins touch, as an ESM-2's attention says.
 *
 * <p>Exit statuses: 0 done; 1 the data, a file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "contacts",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Writes the probabilities of contacts between the residues of proteins.",
        footer = {
            "",
            "The folder has a contact head: esm.contact_head.regression.weight and bias.",
            ".safetensors has a tensor [L, L] for each protein, named by its id; .npy has",
            "that of the only protein.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Contacts extends ProteinCommand {
    private static final int PIXELS = 900;
    /** More cells than a picture has pixels for are averaged. */
    private static final int MOST_CELLS = 400;

    @Mixin
    private ModelOptions model = new ModelOptions();

    @Option(
            names = "--out",
            required = true,
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE.safetensors|FILE.npy",
            description = "the file to write")
    private Path output = Path.of("");

    @Option(
            names = "--plot",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE.png",
            description = "draw the contacts of the only protein (default: none)")
    private @Nullable Path plot;

    Contacts(PrintStream out, PrintStream err) {
        super(out, err);
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Returns the exit status of the command. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.of(new Contacts(out, err), out, err, arguments);
    }

    @Override
    void run() throws IOException {
        EmbeddingFile.requireFormat(output, ".safetensors", ".npy");
        FastaOptions fasta = model.fasta();
        FileChecks.requirePicture("--plot", plot);
        model.requireOthers("--out", output);
        model.begin();
        Esm2Config config = model.config();
        Proteins proteins = Proteins.of(fasta.source(), config.context(), LongSequences.REFUSE);
        boolean npy = output.toString().toLowerCase(Locale.ROOT).endsWith(".npy");
        if (proteins.count() > 1 && (npy || plot != null)) {
            throw new IllegalArgumentException((npy ? "--out: expected .safetensors" : "--plot: expected none")
                    + " for several proteins, got " + (npy ? output : plot) + " for " + proteins.count());
        }
        ContactPredictor.Regression regression = Esm2Checkpoint.contactHead(model.folder());
        try (Device device = Device.open();
                Esm2 opened = model.open(device);
                ContactPredictor predictor = new ContactPredictor(opened, regression);
                ProgressLine progress = new ProgressLine(err(), "proteins", proteins.count());
                FastaReader reader = proteins.source().open()) {
            if (proteins.count() == 1) {
                reader.advance();
                String id = Proteins.id(reader.header(), 1);
                float[][] contacts = predictor.contacts(PackedModel.tokens(reader.residues(), 0, reader.length()));
                write(id, contacts, npy);
                if (plot != null) {
                    draw(plot, id, contacts);
                    out().println("picture: " + plot);
                }
            } else {
                SafetensorsWriter.write(output, sources(proteins, reader, predictor, progress), Map.of());
            }
            out().printf(Locale.ROOT, "%s in %.1f s%n", proteins.text(), progress.seconds());
            proteins.tellUnknown(out());
            out().println("contacts: " + output);
        }
    }

    private void write(String id, float[][] contacts, boolean npy) {
        ByteBuffer bytes = ByteBuffer.allocateDirect(Math.multiplyExact(contacts.length * Float.BYTES, contacts.length))
                .order(ByteOrder.LITTLE_ENDIAN);
        for (float[] row : contacts) {
            for (float one : row) {
                bytes.putFloat(one);
            }
        }
        bytes.flip();
        if (!npy) {
            TensorSpec spec = new TensorSpec(id, DType.FLOAT32, Shape.of(contacts.length, contacts.length));
            SafetensorsWriter.write(output, List.of(TensorSource.of(spec, MemorySegment.ofBuffer(bytes))), Map.of());
            return;
        }
        byte[] all = new byte[bytes.remaining()];
        bytes.get(all);
        try (AtomicFile file = AtomicFile.create(output)) {
            file.append(EmbeddingFile.npyHeader(contacts.length, contacts.length));
            file.append(all);
            file.publish();
        }
    }

    /** Returns tensors that are computed when they are written, one after another as the reader has them. */
    private static List<TensorSource> sources(
            Proteins proteins, FastaReader reader, ContactPredictor predictor, ProgressLine progress) {
        List<TensorSource> sources = new ArrayList<>();
        Map<String, Integer> names = new HashMap<>();
        long number = 0;
        try (FastaReader lengths = proteins.source().open()) {
            while (lengths.advance()) {
                String id = Proteins.id(lengths.header(), ++number);
                String name = id;
                for (int again = names.merge(name, 1, Integer::sum);
                        again > 1;
                        again = names.merge(name, 1, Integer::sum)) {
                    name = id + "#" + again;
                }
                TensorSpec spec = new TensorSpec(name, DType.FLOAT32, Shape.of(lengths.length(), lengths.length()));
                sources.add(new Computed(spec, number, proteins, reader, predictor, progress, new float[1][][]));
            }
        }
        return sources;
    }

    /** The contacts of one protein, until they are written. */
    private record Computed(
            TensorSpec spec,
            long number,
            Proteins proteins,
            FastaReader reader,
            ContactPredictor predictor,
            ProgressLine progress,
            float[][][] contacts)
            implements TensorSource {
        @Override
        public void copyTo(long offset, MemorySegment target) {
            if (offset == 0) {
                reader.advance();
                contacts[0] = predictor.contacts(PackedModel.tokens(reader.residues(), 0, reader.length()));
                progress.at(number, 0, (double) number / proteins.count(), 0);
            }
            long size = contacts[0].length;
            long first = offset / Float.BYTES;
            for (long i = 0; i < target.byteSize() / Float.BYTES; i++) {
                long at = first + i;
                target.set(
                        ValueLayout.JAVA_FLOAT_UNALIGNED,
                        i * Float.BYTES,
                        contacts[0][(int) (at / size)][(int) (at % size)]);
            }
            if (offset + target.byteSize() == spec.byteSize()) {
                contacts[0] = new float[0][];
            }
        }
    }

    private static void draw(Path file, String id, float[][] contacts) {
        try (AtomicFile picture = AtomicFile.create(file)) {
            picture.append(Pictures.png(() -> chart(id, contacts)));
            picture.publish();
        } catch (IOException e) {
            throw new CommandFailure(ForeignText.plain(file) + ": " + e.getMessage(), e);
        }
    }

    private static HeatMapChart chart(String id, float[][] contacts) {
        int stride = Math.max(1, Math.ceilDiv(contacts.length, MOST_CELLS));
        int cells = Math.ceilDiv(contacts.length, stride);
        List<Integer> places = new ArrayList<>();
        List<Number[]> heat = new ArrayList<>();
        for (int i = 0; i < cells; i++) {
            places.add(i * stride + 1);
            for (int j = 0; j < cells; j++) {
                heat.add(new Number[] {i, j, mean(contacts, i * stride, j * stride, stride)});
            }
        }
        HeatMapChart chart = new HeatMapChartBuilder()
                .width(PIXELS)
                .height(PIXELS)
                .title("contacts of " + id)
                .xAxisTitle("residue")
                .yAxisTitle("residue")
                .build();
        chart.getStyler()
                .setRangeColors(new Color[] {Color.WHITE, new Color(70, 110, 180), new Color(10, 20, 60)})
                .setMin(0)
                .setMax(1);
        chart.getStyler().setXAxisMaxLabelCount(11).setChartBackgroundColor(Color.WHITE);
        chart.getStyler().setPlotContentSize(1).setAntiAlias(false);
        chart.addSeries("p", places, places, heat);
        return chart;
    }

    private static float mean(float[][] contacts, int x, int y, int stride) {
        float sum = 0;
        int count = 0;
        for (int i = x; i < Math.min(contacts.length, x + stride); i++) {
            for (int j = y; j < Math.min(contacts.length, y + stride); j++) {
                sum += contacts[i][j];
                count++;
            }
        }
        return sum / count;
    }
}
