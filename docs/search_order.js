/* Pages for users come first: a result in the internals comes after all others, a name in Python after pages, and a
   page of the reference after a recipe. The page with the words of others is behind exact index entries and before
   title words. */
var Scorer = {
  score: ([page, , , , score]) => {
    if (page.startsWith("internals/")) return score - 1000;
    if (page === "reference/python") return score - 100;
    if (page.startsWith("reference/")) return score - 10;
    return page === "how-to/find-an-option" ? score + 12 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
