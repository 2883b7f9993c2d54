package dev.chagres.trainer.command;

import java.util.ArrayList;
import java.util.List;

/** What becomes of proteins that are longer than the context: values of {@code --long}. */
enum LongSequences {
    /** The command fails before it computes anything. */
    REFUSE,
    /** Their first residues are taken. */
    CUT,
    /** Windows that overlap by half are computed, and what they say of a residue is averaged. */
    WINDOWS;

    /** Some residues of a protein that are computed together. */
    record Window(int begin, int count) {}

    /** Reads the option. */
    static final class Words extends EnumOption<LongSequences> {
        Words() {
            super(LongSequences.class);
        }
    }

    /**
     * Returns the windows of a protein, in order. Together they have all residues, or the first ones where it is cut.
     *
     * @param residues of the protein
     * @param most residues of a window, at least 1
     */
    List<Window> windows(int residues, int most) {
        if (residues <= most || this != WINDOWS) {
            return List.of(new Window(0, Math.min(residues, most)));
        }
        List<Window> windows = new ArrayList<>();
        int step = Math.max(1, most / 2);
        int begin = 0;
        for (; begin + most < residues; begin += step) {
            windows.add(new Window(begin, most));
        }
        windows.add(new Window(residues - most, most));
        return windows;
    }
}
