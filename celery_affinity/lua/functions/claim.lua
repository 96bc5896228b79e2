-- claim: pending -> inbox. Moves the best pending jobs to the most specialised free slots. Other server functions end
-- with the same step (`fill`). A claim continues with the types that another invocation returned as `unfilled`.
--
-- Returns {unfilled}. unfilled: types, separated by spaces, whose pending jobs were not processed, because one
-- invocation moves at most MOST_MOVES jobs. The caller passes them to `claim`.
-- Cost: the cost of `fill`.
function functions.claim(ARGV)
    -- ARGV[1..]: types, encoded

    return { fill.fill(ARGV, "", settings_in_force.read(), slot_choice.view())[1] }
end
