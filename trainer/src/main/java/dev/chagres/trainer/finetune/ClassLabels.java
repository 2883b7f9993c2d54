package dev.chagres.trainer.finetune;

import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Targets;
import dev.chagres.trainer.finetune.LabelledProteins.Row;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Classes that have names, of which one is chosen, or any number. Several of a sequence stand in its label with semicolons between them; a batch
 * has the number of such a set.
 *
 * <p>Threading: as {@link TaskLabels}.
 */
final class ClassLabels implements TaskLabels {
    private static final String BETWEEN = ";";

    private final Predicted predicted;
    private final List<String> names;
    private final Map<String, Integer> numbers = new HashMap<>();
    private final List<BitSet> sets = new ArrayList<>();
    private final Map<BitSet, Integer> setNumbers = new HashMap<>();

    /**
     * Takes the classes of a model, or those of the training data where it has none: numbers by size, others by the alphabet.
     *
     * @throws DataException when there are too few
     */
    ClassLabels(Predicted predicted, List<String> own, LabelledProteins training) {
        this.predicted = predicted;
        names = own.isEmpty() ? sorted(training, predicted) : own;
        int least = predicted == Predicted.MULTI_LABEL ? 1 : 2;
        if (names.size() < least) {
            throw new DataException("--train: expected " + (least == 1 ? "a label" : "two labels") + " or more, got "
                    + ForeignText.plain(names.toString()));
        }
        for (int i = 0; i < names.size(); i++) {
            if (numbers.put(names.get(i), i) != null) {
                throw new DataException("--model: expected id2label with a name of its own for each class, got "
                        + ForeignText.plain(names.toString()));
            }
        }
    }

    private static List<String> sorted(LabelledProteins training, Predicted predicted) {
        TreeSet<String> found = training.rows().stream()
                .flatMap(row -> parts(row, predicted))
                .collect(Collectors.toCollection(TreeSet::new));
        boolean areNumbers = found.stream().allMatch(each -> each.matches("\\d{1,9}"));
        return areNumbers
                ? found.stream()
                        .sorted((a, b) -> Integer.compare(Integer.parseInt(a), Integer.parseInt(b)))
                        .toList()
                : List.copyOf(found);
    }

    private static Stream<String> parts(Row row, Predicted predicted) {
        return switch (predicted) {
            case TOKENS -> row.label().chars().mapToObj(letter -> String.valueOf((char) letter));
            case MULTI_LABEL ->
                Stream.of(row.label().split(BETWEEN)).map(String::strip).filter(each -> !each.isEmpty());
            case CLASSIFICATION, REGRESSION -> Stream.of(row.label());
        };
    }

    @Override
    public List<String> names() {
        return names;
    }

    @Override
    public int count() {
        return names.size();
    }

    @Override
    public int[] of(String option, Row row) {
        int[] classes = parts(row, predicted)
                .mapToInt(part -> {
                    Integer number = numbers.get(part);
                    if (number == null) {
                        throw new DataException(option + ": " + row.place() + ": expected one of the labels "
                                + ForeignText.plain(String.join(", ", names)) + ", got " + ForeignText.plain(part));
                    }
                    return number;
                })
                .toArray();
        if (predicted != Predicted.MULTI_LABEL) {
            return classes;
        }
        BitSet set = new BitSet();
        for (int one : classes) {
            set.set(one);
        }
        return new int[] {
            setNumbers.computeIfAbsent(set, fresh -> {
                sets.add(fresh);
                return sets.size() - 1;
            })
        };
    }

    @Override
    public TrainedModel.Factory factory(Esm2ClassifierConfig config) {
        if (predicted != Predicted.MULTI_LABEL) {
            return config;
        }
        List<BitSet> all = List.copyOf(sets);
        return config.reading(Targets.table(all.stream()
                .map(set -> {
                    float[] row = new float[config.labels()];
                    set.stream().forEach(one -> row[one] = 1);
                    return row;
                })
                .toArray(float[][]::new)));
    }

    @Override
    public Predictions predictions() {
        return predicted == Predicted.MULTI_LABEL
                ? new SetPredictions(names.size(), List.copyOf(sets))
                : new ClassPredictions(names.size());
    }
}
