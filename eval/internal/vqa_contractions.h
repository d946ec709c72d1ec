// The contractions that the VQA challenge's scorer restores, by the form that it replaces. Forms it lists
// with capitals are left out: they can't occur, since words are lower-cased before. "somebody'd" losing
// its apostrophe is the scorer's own.
#pragma once
#include <string_view>
#include <unordered_map>

namespace contexture::eval::internal {

inline const std::unordered_map<std::string_view, std::string_view> kContractions{
    {"'ow'sat", "'ow's'at"}, {"'ows'at", "'ow's'at"}, {"ow's'at", "'ow's'at"}, {"twas", "'twas"},
    {"aint", "ain't"}, {"arent", "aren't"}, {"cant", "can't"}, {"couldve", "could've"},
    {"couldnt", "couldn't"}, {"couldn'tve", "couldn't've"}, {"couldnt've", "couldn't've"},
    {"didnt", "didn't"}, {"doesnt", "doesn't"}, {"dont", "don't"}, {"hadnt", "hadn't"},
    {"hadn'tve", "hadn't've"}, {"hadnt've", "hadn't've"}, {"hasnt", "hasn't"},
    {"havent", "haven't"}, {"hed", "he'd"}, {"he'dve", "he'd've"}, {"hed've", "he'd've"},
    {"hes", "he's"}, {"howd", "how'd"}, {"howll", "how'll"}, {"hows", "how's"}, {"isnt", "isn't"},
    {"itd", "it'd"}, {"it'dve", "it'd've"}, {"itd've", "it'd've"}, {"itll", "it'll"},
    {"maam", "ma'am"}, {"mightve", "might've"}, {"mightnt", "mightn't"},
    {"mightn'tve", "mightn't've"}, {"mightnt've", "mightn't've"}, {"mustve", "must've"},
    {"mustnt", "mustn't"}, {"neednt", "needn't"}, {"notve", "not've"}, {"oclock", "o'clock"},
    {"oughtnt", "oughtn't"}, {"shant", "shan't"}, {"she'dve", "she'd've"}, {"shed've", "she'd've"},
    {"shouldve", "should've"}, {"shouldnt", "shouldn't"}, {"shouldn'tve", "shouldn't've"},
    {"shouldnt've", "shouldn't've"}, {"somebody'dve", "somebody'd've"},
    {"somebodyd've", "somebody'd've"}, {"somebodyll", "somebody'll"}, {"somebodys", "somebody's"},
    {"somebody'd", "somebodyd"}, {"someoned", "someone'd"}, {"someone'dve", "someone'd've"},
    {"someoned've", "someone'd've"}, {"someonell", "someone'll"}, {"someones", "someone's"},
    {"somethingd", "something'd"}, {"something'dve", "something'd've"},
    {"somethingd've", "something'd've"}, {"somethingll", "something'll"}, {"thats", "that's"},
    {"thered", "there'd"}, {"there'dve", "there'd've"}, {"thered've", "there'd've"},
    {"therere", "there're"}, {"theres", "there's"}, {"theyd", "they'd"}, {"they'dve", "they'd've"},
    {"theyd've", "they'd've"}, {"theyll", "they'll"}, {"theyre", "they're"}, {"theyve", "they've"},
    {"wasnt", "wasn't"}, {"we'dve", "we'd've"}, {"wed've", "we'd've"}, {"weve", "we've"},
    {"werent", "weren't"}, {"whatll", "what'll"}, {"whatre", "what're"}, {"whats", "what's"},
    {"whatve", "what've"}, {"whens", "when's"}, {"whered", "where'd"}, {"wheres", "where's"},
    {"whereve", "where've"}, {"whod", "who'd"}, {"who'dve", "who'd've"}, {"whod've", "who'd've"},
    {"wholl", "who'll"}, {"whos", "who's"}, {"whove", "who've"}, {"whyll", "why'll"},
    {"whyre", "why're"}, {"whys", "why's"}, {"wont", "won't"}, {"wouldve", "would've"},
    {"wouldnt", "wouldn't"}, {"wouldn'tve", "wouldn't've"}, {"wouldnt've", "wouldn't've"},
    {"yall", "y'all"}, {"y'all'dve", "y'all'd've"}, {"y'alld've", "y'all'd've"},
    {"yall'd've", "y'all'd've"}, {"y'allll", "y'all'll"}, {"yall'll", "y'all'll"},
    {"youd", "you'd"}, {"you'dve", "you'd've"}, {"youd've", "you'd've"}, {"youll", "you'll"},
    {"youre", "you're"}, {"youve", "you've"}};

}  // namespace contexture::eval::internal
